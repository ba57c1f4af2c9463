-- Waits for transactions that hold a lower generation's fence, and only for those.
update {{fence}} set generation = $3, stamped_at = clock_timestamp()
where daemon = $1 and index = $2 and generation < $3
