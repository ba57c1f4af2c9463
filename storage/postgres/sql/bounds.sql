select head, oldest from {{counter}}
