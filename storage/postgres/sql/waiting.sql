select {{wish}} from {{command}} k where k.done_at is null order by k.number
