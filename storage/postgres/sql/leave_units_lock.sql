select from {{unit}} where owner = $1 order by daemon, index for update
