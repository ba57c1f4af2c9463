-- Reads the newest event of the same snapshot too: later events report what happened later.
select c.head, n from {{node}} n, {{counter}} c order by n.incarnation
