-- Lock first, act in the next statement: its snapshot is then newer than the wait.
select from {{node}} where incarnation = $1 for update
