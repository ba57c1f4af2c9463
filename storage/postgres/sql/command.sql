select {{wish}} from {{command}} k where k.id = $1
