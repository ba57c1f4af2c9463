drop trigger if exists keep_key on {{unit}};
drop function if exists {{schema}}.{{name "keep_key"}}();
alter table {{counter}} drop column if exists generation_floor;
