import { render } from "preact";
import { App } from "./app";
import { start } from "./live";
import "./style.css";
import "./theme";

start();
render(<App />, document.getElementById("app")!);
