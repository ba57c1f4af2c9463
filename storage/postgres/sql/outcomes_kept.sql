-- Reads the outcomes that earlier statements of this message have kept. Their transaction is over.
select unnest(current_setting('emitd.outcomes')::text[])
