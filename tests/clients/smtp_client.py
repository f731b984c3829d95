"""Sends mail with smtplib: `PORT hello` only greets, `PORT send ROOTS` sends its input ten times in
plaintext and ten times with STARTTLS."""

import smtplib
import ssl
import sys
from email.message import EmailMessage

port, command, *arguments = sys.argv[1:]


def connect():
    smtp = smtplib.SMTP("localhost", int(port), timeout=20)
    smtp.ehlo("client.example")
    return smtp


if command == "hello":
    connect().quit()
    sys.exit()

context = ssl.create_default_context(cafile=arguments[0])
text = sys.stdin.read()
for tls in ("clear", "starttls"):
    for number in range(10):
        with connect() as smtp:
            if tls == "starttls":
                smtp.starttls(context=context)
                smtp.ehlo("client.example")
            message = EmailMessage()
            message["From"], message["To"] = "one@client.example", "two@server.example"
            message["Subject"] = f"{tls} {number}"
            message.set_content(text)
            smtp.send_message(message)
