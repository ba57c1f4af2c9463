select generation from {{fence}} where daemon = $1 and index = $2::bigint
