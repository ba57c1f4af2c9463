select {{happening}} from {{event}} e where e.seq > $1 and e.kind like 'node.%' order by e.seq limit 500
