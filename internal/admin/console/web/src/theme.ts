import { store } from "./store";

export const themes = ["system", "light", "dark"];

const key = "emitd-theme";

export const theme = store(themes.includes(localStorage.getItem(key) ?? "") ? localStorage.getItem(key)! : "system");

const apply = () => {
  localStorage.setItem(key, theme.get());
  document.documentElement.dataset.theme = theme.get();
};
theme.follow(apply);
apply();

export const nextTheme = () => theme.set(themes[(themes.indexOf(theme.get()) + 1) % themes.length]!);
