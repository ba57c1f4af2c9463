-- Locks the lease for a heartbeat that may change it. A candidate may if stand_lock has locked the term for it.
select from {{lease}} where $2::boolean or current_setting('emitd.candidate', true) = $1 for update
