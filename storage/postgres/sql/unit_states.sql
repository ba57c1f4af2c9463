select s from {{unit_state}} s order by s.daemon, s.index
