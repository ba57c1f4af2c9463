select pg_postmaster_start_time(), (pg_control_system()).system_identifier
