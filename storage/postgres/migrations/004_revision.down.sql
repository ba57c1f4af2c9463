drop function if exists {{schema}}.{{name "heartbeat_4"}};
drop trigger if exists revise on {{term}};
drop trigger if exists revise on {{unit}};
drop function if exists {{schema}}.{{name "revise"}};
alter table {{counter}} drop column if exists revision;
