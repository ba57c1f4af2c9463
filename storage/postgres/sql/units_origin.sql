-- Tells whether a reading of units that begins now compares with an earlier one, and what it is to be compared with itself:
-- see units_count. Only of the first page does anybody ask which transactions it has seen.
select {{comparable "$1" "$2"}}, {{oldest}}, case when $3 then (select {{seen "u"}} from {{unit}} u) else '{}' end, {{history}}
