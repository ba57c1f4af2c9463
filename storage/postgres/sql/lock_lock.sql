select from {{lock}} where name = $1 for update
