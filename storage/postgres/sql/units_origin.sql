-- Tells what a reading of units that begins now is to be compared with: see units_count.
select {{oldest}}, {{history}}
