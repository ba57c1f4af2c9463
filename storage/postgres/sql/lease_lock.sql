select from {{lease}} for update
