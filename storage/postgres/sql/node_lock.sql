-- Locks the row for the next statement, whose snapshot is then taken after the wait.
select from {{node}} where incarnation = $1 for update
