select k from {{command}} k where k.id = $1
