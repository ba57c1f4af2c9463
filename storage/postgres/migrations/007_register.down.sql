drop function if exists {{schema}}.{{name "register_7"}};
drop index if exists {{schema}}.{{name "node_id"}};
