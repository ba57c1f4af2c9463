-- Holds the fence to the end of the caller's transaction and bounds how long that may idle, because
-- the unit's next run waits for it. A lower bound that is already set stays.
select f.generation, set_config('idle_in_transaction_session_timeout',
	(select least(nullif(s.setting::bigint, 0), $3::bigint)::text from pg_catalog.pg_settings s
		where s.name = 'idle_in_transaction_session_timeout'), true)
from {{fence}} f where f.daemon = $1 and f.index = $2
for share of f
