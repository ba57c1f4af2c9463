select u from {{unit}} u where u.owner = $1
