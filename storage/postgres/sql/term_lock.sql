-- Whoever ends a term waits here for a commit that is under way in it.
select from {{term}} for update
