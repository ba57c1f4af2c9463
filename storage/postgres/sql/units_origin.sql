-- Tells whether a reading of units that begins now compares with an earlier one, and what it is to be compared with itself:
-- see units_count.
select {{comparable "$1" "$2"}}, {{oldest}}, {{history}}
