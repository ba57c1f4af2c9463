drop function if exists {{schema}}.{{name "heartbeat_1"}}; -- which the first programs created with version 1
drop table {{lock}};
drop table {{command}};
drop table {{counter}};
drop table {{event}};
drop table {{fence}};
drop table {{unit}};
drop table {{lease}};
drop table {{term}};
drop table {{advert}};
drop table {{node}};
