-- A candidate waits here for the running commit of the term it would replace.
select from {{term}} for update
