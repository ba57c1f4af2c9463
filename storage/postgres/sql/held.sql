select {{record "u"}} from {{unit}} u where u.owner = $1 order by u.daemon, u.index
