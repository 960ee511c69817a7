"""All that training needs in addition to a plan: tokens, an optimizer's settings, evaluation, metrics, weights, and an orderly
end."""
