select from {{counter}} for update
