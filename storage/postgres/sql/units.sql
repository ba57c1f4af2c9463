select u from {{unit}} u order by u.daemon, u.index
