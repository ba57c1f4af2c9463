-- No subquery and no more tables: planning them would cost more than all the rest.
select clock_timestamp(), (pg_control_system()).system_identifier, pg_walfile_name(pg_current_wal_insert_lsn()), t, l, c
from {{term}} t, {{lease}} l, {{counter}} c
