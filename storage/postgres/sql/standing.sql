-- Finds out why a call was refused.
select state <> 'removed', departed from {{node}} where incarnation = $1
