drop function if exists {{schema}}.{{name "heartbeat_2"}};
