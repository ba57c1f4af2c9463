select {{started}}, (pg_control_system()).system_identifier
