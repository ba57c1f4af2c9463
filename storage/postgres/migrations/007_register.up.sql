-- A node that registers looks for another process with its ID.
create index {{name "node_id"}} on {{node}} (id);

{{include "register_7"}}
