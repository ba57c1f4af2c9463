-- A candidate waits here for a commit that is under way in the term it would replace.
select from {{term}} for update
