-- Reads the tables that have a single row, all at one moment, with the store's clock, the start time of the server that
-- answers, and the name of the write-ahead log file that it writes now. The name begins with eight digits of the
-- timeline.
select c, clock_timestamp(), {{started}}, pg_walfile_name(pg_current_wal_insert_lsn()),
	(select t from {{term}} t), (select l from {{lease}} l)
from {{counter}} c
