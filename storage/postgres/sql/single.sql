-- The single-row tables as of one moment, with the store's clock, the server process that answers,
-- and the log that it writes now. The log's name begins with eight digits of the timeline.
select c, clock_timestamp(), pg_postmaster_start_time(), pg_walfile_name(pg_current_wal_insert_lsn()),
	(select t from {{term}} t), (select l from {{lease}} l)
from {{counter}} c
