-- Reads the number of the newest event from the same snapshot. What happens later has events with higher numbers.
select c.head, n from {{node}} n, {{counter}} c order by n.incarnation
