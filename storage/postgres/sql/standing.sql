-- Asked when a call was refused: why.
select state <> 'removed', departed from {{node}} where incarnation = $1
