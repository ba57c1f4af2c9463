select k from {{command}} k where k.done_at is null
