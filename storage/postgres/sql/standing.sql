-- Asked when a call was refused: why.
select state <> 'removed', departed, seq from {{node}} where incarnation = $1
