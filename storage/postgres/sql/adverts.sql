select hash, body from {{advert}} where hash = any($1::text[])
