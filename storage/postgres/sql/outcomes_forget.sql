-- Nothing is kept in the session beyond the message. What a message has left that failed is forgotten by the next one.
select set_config('emitd.outcomes', '', false) is null
