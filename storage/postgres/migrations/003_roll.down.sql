drop index if exists {{schema}}.{{name "event_roll"}};
