select f.generation from {{fence}} f where f.daemon = $1 and f.index = $2::bigint for share
