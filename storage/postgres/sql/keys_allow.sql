-- Lets this transaction retire keys: see the trigger keep_key.
select set_config('emitd.keys', 'on', true)
