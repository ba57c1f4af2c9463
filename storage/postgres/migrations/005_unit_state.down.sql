drop table if exists {{unit_state}};
