with seen as (
	update {{node}} n set witnessed = true
	where n.incarnation = any($2::text[]) and n.incarnation <> $1 and n.state <> 'removed' and not n.witnessed
		and {{written "$1"}}
	returning 1
),
awake as (select t.incarnation, true as leader from {{term}} t where {{held "t"}} and exists (select from seen)),
{{wake}}
select count(*) from woken
